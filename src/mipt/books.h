/*-------------------------------------------------------------------------
 *
 * books.h
 *	  What functions write to the MIPT when the transaction commits.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_BOOKS_H
#define MIP_BOOKS_H

typedef enum MipBookKind
{
	MIP_NOTE,					/* nobody would miss it after a crash */
	MIP_EFFECT,					/* durable when the caller is told */
	MIP_REMOVAL					/* the same; left out if the family is in use */
} MipBookKind;

/*
 * Writes, once it has looked at everything again; may fail. Called with the family
 * lock held exclusively, until the transaction is over.
 */
typedef void (*MipKeepBook) (const char *xid, void *arg);

/* To be kept in the end; `arg` lives in TopTransactionContext. */
extern void mip_book(const char *xid, MipBookKind kind, MipKeepBook keep, void *arg);
extern bool mip_is_booked(const char *xid, MipKeepBook keep);

/*
 * Keeps the books of this transaction, before it commits; takes the family locks
 * until its end. May fail: decisions stand all the same, and repeating them notes
 * the rest.
 */
extern void mip_keep_books(void);

/* This transaction decides, or cleans up, by this function. Does it? */
extern void mip_begin_books(const char *function);
extern bool mip_has_books(void);

/* Before it becomes an instance, or is prepared: an error if it does. */
extern void mip_refuse_books(void);

/* At its end. */
extern void mip_lose_books(void);

#endif							/* MIP_BOOKS_H */
