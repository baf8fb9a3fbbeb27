"""The queries below a URL, and which places named by a store may be opened."""
