"""Real serving engines, each in a process of its own: are models faster where they are served?"""
