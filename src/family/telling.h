/*-------------------------------------------------------------------------
 *
 * telling.h
 *	  Telling a client of an error, which may not read it.
 *
 * PostgreSQL tells the client before it aborts the transaction, and holds
 * interrupts meanwhile: the locks of an instance would stay for as long as its
 * client does not read, and neither a cancel nor the end of the session would
 * help. From here on a session that is to end hangs up instead, and so does that of a
 * doomed instance, after some seconds.
 *
 * (Errors that log_min_messages keeps from the server's log are not noticed.)
 *-------------------------------------------------------------------------
 */
#ifndef MIP_TELLING_H
#define MIP_TELLING_H

extern void mip_telling_init(void);

/* Of these sessions as well, whoever they are */
extern void mip_telling_also(bool (*who) (void));

/*
 * What there was to tell has been told: to be called at the end of the transaction or
 * savepoint, while the instance is registered.
 */
extern void mip_telling_done(void);

#endif							/* MIP_TELLING_H */
