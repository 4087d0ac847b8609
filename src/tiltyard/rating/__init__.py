"""Pure statistics over votes: pair counts, Bradley-Terry, intervals, ranks and the leaderboard they make."""
