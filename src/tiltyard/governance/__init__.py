"""What may be kept of people: finding and replacing what names them, before anything is written."""
