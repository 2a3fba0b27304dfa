/*-------------------------------------------------------------------------
 *
 * prepared.c
 *	  The writeset of a prepared instance.
 *
 * What it has changed stays where it is, and its locks keep the tables from being
 * rewritten, as long as it is prepared. It may be ended by anybody at any time, which
 * nobody should have to wait for, and values are turned into text by functions of
 * others' choosing, for which no lock of ours is to be held [lock-let-go]. So it is
 * looked at again behind it: what has been read counts if the instance is still
 * prepared, since then it was all the time.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "utils/resowner.h"

#include "base/compat.h"
#include "base/stop.h"
#include "mipt/mipt.h"
#include "mipt/rows.h"
#include "tableam/places.h"
#include "tableam/places_store.h"
#include "writeset/extract.h"
#include "writeset/prepared.h"

pg_noreturn static void
refuse_unknown(const char *xid, int64 xinst)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("there is no prepared instance " INT64_FORMAT " of family \"%s\"", xinst, xid)));
}

/* Still, and not once more, as after mip.forget? */
static bool
is_prepared(const char *xid, int64 xinst, TransactionId transaction)
{
	MiptEntry  *entry = mipt_read_in_doubt(xid, xinst, NULL);

	return entry && HeapTupleHeaderGetRawXmin(entry->row->t_data) == transaction;
}

/* An error is that of what has gone, if the instance has ended: a subtransaction tells. */
static struct varlena *
extract(const char *xid, int64 xinst, TransactionId transaction, const bytea *places,
		int64 after, int64 max_bytes)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	struct varlena *volatile writeset = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		MipPlaces  *loaded = mip_places_load(places);

		mip_check_after(loaded, after);
		writeset = mip_extract(loaded, false, after, max_bytes);
		mip_places_close(loaded);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		if (is_prepared(xid, xinst, transaction))
			ReThrowError(error);
		refuse_unknown(xid, xinst);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return writeset;
}

struct varlena *
mip_extract_prepared(const char *xid, int64 xinst, int64 after, int64 max_bytes)
{
	MiptEntry  *entry = mipt_read_in_doubt(xid, xinst, mipt_load_places);
	struct varlena *writeset;
	TransactionId transaction;

	if (entry == NULL)
		refuse_unknown(xid, xinst);
	if (entry->places == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the changes of instance " INT64_FORMAT " of family \"%s\" have not been captured",
						xinst, xid),
				 errhint("Set mip.capture_writeset to on in its transaction.")));
	transaction = HeapTupleHeaderGetRawXmin(entry->row->t_data);
	mip_stop_point("places");
	writeset = extract(xid, xinst, transaction, entry->places, after, max_bytes);
	if (!is_prepared(xid, xinst, transaction))
		refuse_unknown(xid, xinst);
	return writeset;
}
