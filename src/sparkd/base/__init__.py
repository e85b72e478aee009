"""What the agent and the tools both need: the machine read, settings, recipes, plans, reports, records."""
