"""Many devices at once: a sweep, a comparison and a compression of a fleet of them.

``driver.py`` deals a suite out over the devices of a ``Cluster``: threads of this process
(``cluster.py``) or Ray (``on_ray.py``). What runs beside a device is ``worker.py``, with the same
engine as a sweep of one device.
"""
