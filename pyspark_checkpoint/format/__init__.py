"""What the stored bytes mean: names, manifests, records, packs, encryption. Pure: no store, no clock."""
