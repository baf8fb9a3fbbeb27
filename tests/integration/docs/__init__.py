"""What the pages say, tried."""
