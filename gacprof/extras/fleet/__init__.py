"""Many devices at once: a sweep, a comparison and a compression of a fleet of them.

``driver.py`` deals a suite out over the devices of a ``Cluster``: threads of this process
(``cluster.py``) or Ray (``on_ray.py``). A device is run by its own worker, with the same
engine as a sweep of one device.
"""
