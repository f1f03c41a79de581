"""What differs between inference engines, and between machines' meters: names, flags, pages. It opens no socket."""
