"""GPU profiles: facts with unit, source and kind."""
