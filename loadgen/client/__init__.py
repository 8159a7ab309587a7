"""One shot in, one record out: transport -> sse -> openai -> answer -> record."""
