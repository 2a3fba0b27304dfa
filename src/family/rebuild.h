/*-------------------------------------------------------------------------
 *
 * rebuild.h
 *	  The registry after the server's start: who was prepared before.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REBUILD_H
#define MIP_REBUILD_H

/*
 * Makes sure that the registry knows the instances that were prepared before the
 * server started; does nothing if the library was not preloaded. Not on a standby.
 */
extern void mip_registry_rebuild(void);

/* The same for who has called `function`: refused without the library, and on a standby. */
extern void mip_registry_ensure(const char *function);

#endif							/* MIP_REBUILD_H */
