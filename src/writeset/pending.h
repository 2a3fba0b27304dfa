/*-------------------------------------------------------------------------
 *
 * pending.h
 *	  Triggers that may still change rows before the transaction ends.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_WRITESET_PENDING_H
#define MIP_WRITESET_PENDING_H

/* 55000 if there is one. */
extern void mip_refuse_pending_triggers(void);

#endif							/* MIP_WRITESET_PENDING_H */
