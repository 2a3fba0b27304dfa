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

#include "base/compat.h"
#include "base/stop.h"
#include "base/subtransaction.h"
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

typedef struct Extraction
{
	const bytea *places;
	int64		after;
	int64		max_bytes;
	struct varlena *writeset;	/* is made */
} Extraction;

static void
extract(void *arg)
{
	Extraction *extraction = arg;
	MipPlaces  *places = mip_places_load(extraction->places);

	mip_check_after(places, extraction->after);
	extraction->writeset = mip_extract(places, false, extraction->after, extraction->max_bytes);
	mip_places_close(places);
}

struct varlena *
mip_extract_prepared(const char *xid, int64 xinst, int64 after, int64 max_bytes)
{
	MiptEntry  *entry = mipt_read_in_doubt(xid, xinst, mipt_load_places);
	Extraction	extraction = {NULL, after, max_bytes, NULL};
	TransactionId transaction;
	ErrorData  *error;

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
	extraction.places = entry->places;
	error = mip_try(extract, &extraction);
	/* an error is then that of what has gone */
	if (!is_prepared(xid, xinst, transaction))
		refuse_unknown(xid, xinst);
	if (error)
		ReThrowError(error);
	return extraction.writeset;
}
