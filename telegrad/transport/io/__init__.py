"""Reading and writing of direct sockets, by whichever thread would be woken anyway."""
