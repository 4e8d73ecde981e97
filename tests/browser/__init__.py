"""All of these share one server and one browser; the package is what ends both before other tests go on."""
