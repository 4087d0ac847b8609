"""Pages for people: the arena and the leaderboard, rendered on the server."""
