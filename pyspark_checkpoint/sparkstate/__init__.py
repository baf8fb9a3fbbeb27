"""What the files in Spark's checkpoint directory mean. Pure: listings and bytes in, plans out."""
