# CPU: docker build -t gigabatch .        (docs/docker.md)
FROM python:3.12-slim

# OpenMP, by which compiled loops run in parallel; without it a service computes one thing at a time.
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 10001 gigabatch
WORKDIR /opt/gigabatch
COPY . .
RUN pip install --no-cache-dir -c constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu ".[serve,export,remote,track]" \
    && install -o gigabatch -d /var/cache/gigabatch /srv/gigabatch

# gigabatch, as a number, which runAsNonRoot can see through
USER 10001
WORKDIR /srv/gigabatch
ENV NUMBA_CACHE_DIR=/var/cache/gigabatch MPLCONFIGDIR=/var/cache/gigabatch/matplotlib OMP_NUM_THREADS=4
# Compiles the loops, which takes minutes, as who runs them and where they look. They hold for this kind of processor:
# on another one every container compiles them again.
RUN gigabatch warm

ENTRYPOINT ["gigabatch"]
CMD ["--help"]
