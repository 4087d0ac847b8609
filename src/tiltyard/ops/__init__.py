"""Above the servers: replay of what they said."""
