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

/* This backend begins an instance: remembers what its session has. */
extern void mip_session_begin(void);

/* It has PREPAREd a statement. */
extern void mip_session_note_prepared(const char *name);

/*
 * It is about to be prepared: releases the session's locks that it has taken.
 * Errors out if there is another one, since PostgreSQL would later.
 */
extern void mip_session_before_prepare(void);

/*
 * The instance has ended: takes back what it did to its session. `kept`: the
 * transaction has not been aborted, so PostgreSQL would keep its settings. To be
 * called by the transaction callbacks.
 */
extern void mip_session_restore(bool kept);

#endif							/* MIP_SESSION_H */
