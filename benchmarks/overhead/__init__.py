"""The ground of ``gateway_overhead.py``: mock upstream, load, meter, peers, verdict. No figure is judged by its
own maker: what measures never knows whom it measures."""
