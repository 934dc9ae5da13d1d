"""Built-in rooms: furniture made of simple shapes, rendered to depth."""
