"""What compiles for accelerators that are not here, with how much memory and which collectives."""
