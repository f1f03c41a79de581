"""The OpenAI wire format, pure: bytes in, values out. Nothing here opens a socket."""
