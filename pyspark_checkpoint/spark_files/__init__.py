"""What is in a Spark checkpoint location: names, logs, listings, state versions."""
