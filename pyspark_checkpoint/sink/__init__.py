"""``format("ckpt-sink")``: rows, operator state and offsets in one atomic create; its readers."""
