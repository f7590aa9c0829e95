"""Studies of selection: what orders candidates, which intervals cover, whom to measure, when to abstain."""
