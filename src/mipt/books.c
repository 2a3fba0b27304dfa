/*-------------------------------------------------------------------------
 *
 * books.c
 *	  What functions write to the MIPT when the transaction commits.
 *
 * Whoever writes for a family keeps its lock until the commit. But a statement
 * may take its time after it has called a function, or be left half way by its
 * client; and nobody else could use the family, or an XID that is still to be
 * used. So functions check, answer, and book what is to be written [lock-let-go].
 * That is done when the transaction commits, and nothing of the caller's choosing runs any
 * more; what the answer rested on is looked at again then, and if it does not
 * hold any more the transaction fails.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "base/mip.h"
#include "base/stop.h"
#include "family/family_lock.h"
#include "mipt/books.h"
#include "mipt/mipt.h"

typedef struct Book
{
	char	   *xid;
	MipBookKind kind;
	MipKeepBook keep;
	void	   *arg;
	bool		locked;
} Book;

static List *books;				/* of Book; in TopTransactionContext */
static const char *books_of;	/* the function called last */

void
mip_book(const char *xid, MipBookKind kind, MipKeepBook keep, void *arg)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);
	Book	   *book = palloc0(sizeof(Book));

	book->xid = pstrdup(xid);
	book->kind = kind;
	book->keep = keep;
	book->arg = arg;
	books = lappend(books, book);
	MemoryContextSwitchTo(old);
}

bool
mip_is_booked(const char *xid, MipKeepBook keep)
{
	ListCell   *lc;

	foreach(lc, books)
	{
		Book	   *book = lfirst(lc);

		if (book->keep == keep && strcmp(book->xid, xid) == 0)
			return true;
	}
	return false;
}

static int
compare_books(const ListCell *a, const ListCell *b)
{
	return strcmp(((Book *) lfirst(a))->xid, ((Book *) lfirst(b))->xid);
}

/* Everybody takes the locks of many families in the same order [lock-order]. */
static void
lock_families(void)
{
	List	   *sorted = list_copy(books);
	Book	   *previous = NULL;
	ListCell   *lc;

	list_sort(sorted, compare_books);
	foreach(lc, sorted)
	{
		Book	   *book = lfirst(lc);

		if (previous && previous->locked && strcmp(previous->xid, book->xid) == 0)
			book->locked = true;
		else if (book->kind == MIP_REMOVAL)
			book->locked = mip_family_lock_if_free(book->xid, ExclusiveLock);
		else
		{
			mipt_lock(book->xid, ExclusiveLock);
			book->locked = true;
		}
		previous = book;
	}
	list_free(sorted);
}

/* Is there nothing to be written that anybody would miss? */
static bool
only_notes(void)
{
	ListCell   *lc;

	foreach(lc, books)
	{
		if (((Book *) lfirst(lc))->kind != MIP_NOTE)
			return false;
	}
	return !TransactionIdIsValid(GetTopTransactionIdIfAny());
}

void
mip_keep_books(void)
{
	MemoryContext family;
	MemoryContext caller;
	ListCell   *lc;

	Assert(GetCurrentTransactionNestLevel() == 1);
	if (books == NIL)
		return;
	if (only_notes())
		set_config_option("synchronous_commit", "off", PGC_USERSET, PGC_S_SESSION,
						  GUC_ACTION_LOCAL, true, 0, false);
	PushActiveSnapshot(GetTransactionSnapshot());	/* for TOAST */
	family = AllocSetContextCreate(CurrentMemoryContext, "pg_mip family",
								   ALLOCSET_DEFAULT_SIZES);
	caller = MemoryContextSwitchTo(family);
	lock_families();
	foreach(lc, books)
	{
		Book	   *book = lfirst(lc);

		if (!book->locked)
			continue;
		Assert(mip_family_locked(book->xid, ExclusiveLock));
		book->keep(book->xid, book->arg);
		/* the next one may change the same rows */
		CommandCounterIncrement();
		MemoryContextReset(family);
		mip_stop_point("book");
	}
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(family);
	PopActiveSnapshot();
	mip_stop_point("noted");
}

void
mip_begin_books(const char *function)
{
	books_of = function;
}

bool
mip_has_books(void)
{
	return books_of != NULL;
}

/*
 * A pipeline can begin a block behind a function whose rows have not all been
 * fetched. What is booked, or a family lock, must not hang on a prepared transaction,
 * nor an instance wait for its family's lock when it has those of the books.
 */
void
mip_refuse_books(void)
{
	if (books_of)
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("a transaction that has called %s cannot be prepared", books_of),
				 errhint("Send that as a transaction of its own.")));
}

void
mip_lose_books(void)
{
	books = NIL;
	books_of = NULL;
}
