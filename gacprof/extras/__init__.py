"""What goes beyond the chain: methods of compression, engines that serve, many devices.

The core never imports it; ``api.py`` and the command line do, when a verb is called.
"""
