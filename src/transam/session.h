/*-------------------------------------------------------------------------
 *
 * session.h
 *	  What an instance would leave in its session: settings, prepared
 *	  statements, locks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_SESSION_H
#define MIP_SESSION_H

extern void mip_session_init(void);

/* This backend's instance has PREPAREd a statement. */
extern void mip_session_note_prepared(const char *name);

/*
 * The instance has ended: takes back what it did to its session. `kept`: the
 * transaction has not been aborted, so PostgreSQL would keep its settings. To be
 * called by the transaction callbacks.
 */
extern void mip_session_restore(bool kept);

#endif							/* MIP_SESSION_H */
