/*-------------------------------------------------------------------------
 *
 * catalog.c
 *	  Where the relations of the schema mip are, and a page of theirs that is read in
 *	  every transaction.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "commands/extension.h"
#include "storage/bufmgr.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "base/compat.h"
#include "base/mip.h"
#include "mipt/catalog.h"

static Oid
find_relation(const char *name)
{
	Oid			relid = get_relname_relid(name, get_namespace_oid("mip", false));

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("relation mip.%s does not exist", name),
				 errhint("Run CREATE EXTENSION pg_mip in this database.")));
	return relid;
}

/* What has been found before, until something happens to the relation */
typedef struct Known
{
	Oid			relid;			/* invalid: look again */
	uint64		note;			/* of a page; 0: none is known */
	MipFileLocator locator;
	BlockNumber block;
	Buffer		buffer;
} Known;

static Known known[MIPT_RELATIONS];

static void
forget_known(Datum arg, Oid relid)
{
	for (int i = 0; i < MIPT_RELATIONS; i++)
	{
		if (OidIsValid(relid) && known[i].relid != relid)
			continue;
		known[i].relid = InvalidOid;
		known[i].note = 0;
	}
}

Oid
mipt_relid(MiptRelation which)
{
	static const char *const names[MIPT_RELATIONS] = {
		[MIPT_TABLE] = "mipt",
		[MIPT_PKEY] = "mipt_pkey",
		[MIPT_TIMELESS] = "mipt_timeless",
		[MIPT_LINKED] = "mipt_linked",
		[MIPT_HORIZON] = "horizon",
		[MIP_APPLIED] = "applied",
		[MIP_APPLIED_PKEY] = "applied_pkey",
		[MIP_LOG] = "log",
		[MIP_MEMBERS] = "replicas",
	};
	static bool registered = false;

	Assert(IsTransactionState());
	if (!registered)
	{
		CacheRegisterRelcacheCallback(forget_known, (Datum) 0);
		registered = true;
	}
	if (!OidIsValid(known[which].relid))
		known[which].relid = find_relation(names[which]);
	return known[which].relid;
}

void
mipt_note_page(MiptRelation which, Relation rel, Buffer buffer)
{
	static uint64 last_note;
	ForkNumber	fork;

	/* else something has happened to it, and of what is next we hear nothing */
	if (known[which].relid != RelationGetRelid(rel))
		return;
	BufferGetTag(buffer, &known[which].locator, &fork, &known[which].block);
	Assert(fork == MAIN_FORKNUM);
	known[which].buffer = buffer;
	known[which].note = ++last_note;
}

/*
 * Whose page this file's was hears here that it is not any more, before the file is
 * dropped: those who commit tell so before they give their locks back.
 */
uint64
mipt_note(MiptRelation which)
{
	AcceptInvalidationMessages();
	return known[which].note;
}

Buffer
mipt_noted_page(MiptRelation which)
{
	const Known *page = &known[which];

	if (mipt_note(which) != 0 &&
		ReadRecentBuffer(page->locator, MAIN_FORKNUM, page->block, page->buffer))
		return page->buffer;
	return InvalidBuffer;
}

bool
mipt_exists(void)
{
	return OidIsValid(get_extension_oid("pg_mip", true));
}
