"""What decoders do to rows between products, compiled for CPUs."""
