/*-------------------------------------------------------------------------
 *
 * entry.c
 *	  Entries of the MIPT: whose, and in which state.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/mip.h"
#include "family/current.h"
#include "mipt/entry.h"

MiptEntry *
mipt_entry_of(const MipInstance *inst)
{
	MiptEntry  *entry = palloc0(sizeof(MiptEntry));

	entry->xinst = inst->xinst;
	if (MipInstanceIsPrepared(inst))
		entry->state = MIP_PREPARED;
	else						/* a doomed one can do nothing any more but
								 * end */
		entry->state = inst->doomed ? MIP_ABORTED : MIP_ACTIVE;
	entry->sites = inst->site_set;
	entry->owner = inst->owner;
	entry->since = inst->since;
	ItemPointerSetInvalid(&entry->tid);
	return entry;
}

MiptEntry *
mipt_own_entry(MipState state)
{
	MiptEntry  *entry;

	Assert(mip_in_transaction());
	entry = mipt_entry_of(mip_mine.inst);
	entry->state = state;
	entry->request = mip_mine.request;
	entry->result = mip_mine.result;
	entry->sites = mip_mine.sites;
	return entry;
}

static void *
copy_varlena(const void *value)
{
	return value ? memcpy(palloc(VARSIZE_ANY(value)), value, VARSIZE_ANY(value)) : NULL;
}

MiptEntry *
mipt_copy_loser(const MiptEntry *entry)
{
	MiptEntry  *copy = palloc(sizeof(MiptEntry));

	*copy = *entry;
	copy->request = copy_varlena(entry->request);
	copy->result = copy_varlena(entry->result);
	copy->sites = copy_varlena(entry->sites);
	copy->links = NULL;
	copy->places = NULL;
	copy->row = NULL;
	return copy;
}

bool
mipt_is_foreign(const MiptEntry *entry)
{
	return TransactionIdIsValid(entry->running);
}

MiptEntry *
mipt_find(List *entries, int64 xinst)
{
	ListCell   *lc;

	foreach(lc, entries)
	{
		MiptEntry  *entry = lfirst(lc);

		if (entry->xinst == xinst)
			return entry;
	}
	return NULL;
}

static MiptEntry *
find_state(List *entries, MipState state)
{
	ListCell   *lc;

	foreach(lc, entries)
	{
		MiptEntry  *entry = lfirst(lc);

		if (entry->state == state)
			return entry;
	}
	return NULL;
}

MiptEntry *
mipt_committed(List *entries)
{
	return find_state(entries, MIP_COMMITTED);
}

bool
mipt_has_prepared(List *entries)
{
	return find_state(entries, MIP_PREPARED) != NULL;
}
