"""The 7-Scenes data: downloading, fusing frames, and the prepared form."""
