/*-------------------------------------------------------------------------
 *
 * preload.h
 *	  Has the library been loaded when the server started?
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_PRELOAD_H
#define MIP_PRELOAD_H

/* While it is. An error (MP006) in a server that is too old. */
extern void mip_preload_init(void);

/* Errors out (MP006) if it has not: there are no hooks and no shared memory. */
extern void mip_require_preload(void);

#endif							/* MIP_PRELOAD_H */
