/*
 * slow_flush.c
 *	  A slow disk: fdatasync takes SLOW_FLUSH_US microseconds longer.
 *
 * To be preloaded (LD_PRELOAD) into the server; bench/disk.py compiles it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

int
fdatasync(int fd)
{
	static int	(*real) (int);
	const char *us = getenv("SLOW_FLUSH_US");

	if (real == NULL)
		real = (int (*) (int)) dlsym(RTLD_NEXT, "fdatasync");
	if (us)
		usleep(strtoul(us, NULL, 10));
	return real(fd);
}
