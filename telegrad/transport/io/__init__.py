"""Reading and writing of direct sockets, by the thread that would be woken anyway."""
