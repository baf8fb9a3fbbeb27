"""Names of the first designs that nothing else needs; ``docs/seed-map.md`` lists them."""
