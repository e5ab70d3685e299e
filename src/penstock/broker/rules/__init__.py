"""What each request needs to be allowed."""
