/*-------------------------------------------------------------------------
 *
 * push.h
 *	  Nothing stays in doubt, or for ever, unnoticed: background workers.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_PUSH_H
#define MIP_PUSH_H

/* The setting, and the background worker that looks after all databases. */
extern void mip_push_init(void);

extern PGDLLEXPORT void mip_push_main(Datum arg);
extern PGDLLEXPORT void mip_push_worker_main(Datum dbid);

#endif							/* MIP_PUSH_H */
