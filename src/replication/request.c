/*-------------------------------------------------------------------------
 *
 * request.c
 *	  What replicas tell each other of requests: entries of the MIPT in messages.
 *
 * A request that is committed in one phase at one replica is so at all of them, by the
 * message that has what it has changed. An entry that refuses an instance is in a fence:
 * whoever is told that it will never be committed has been told so by all. Other notes stay where they
 * are made.
 *
 * A body begins with
 *
 *		 0	uint32	length of all this
 *		 4	uint64	begun
 *		12	uint64	hash of the XID
 *		20	int64	XINST; 0: a fence that refuses no instance
 *		28	int64	since when
 *		36	int32	number of sites, -1 if none are known
 *		40	int32	length of the request, -1 if none
 *		44	int32	length of the result, likewise
 *		48	XID, owner, sites, each with a zero
 *			request
 *			result
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type_d.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "base/compat.h"
#include "base/mip.h"
#include "family/eviction.h"
#include "family/family.h"
#include "family/family_lock.h"
#include "family/rebuild.h"
#include "mipt/mipt.h"
#include "mipt/rows.h"
#include "replication/request.h"
#include "writeset/format.h"

#define FIXED	48

/* ---- as bytes ---- */

static void
put_string(StringInfo body, const char *string)
{
	appendBinaryStringInfo(body, string, strlen(string) + 1);
}

static int32
put_sites(StringInfo body, ArrayType *sites)
{
	Datum	   *names;
	int			n;

	if (sites == NULL)
		return -1;
	deconstruct_array(sites, TEXTOID, -1, false, TYPALIGN_INT, &names, NULL, &n);
	for (int i = 0; i < n; i++)
		put_string(body, TextDatumGetCString(names[i]));
	return n;
}

/* Its length, -1 if there is none */
static int32
put_text(StringInfo body, const text *value)
{
	if (value == NULL)
		return -1;
	appendBinaryStringInfo(body, VARDATA_ANY(value), VARSIZE_ANY_EXHDR(value));
	return VARSIZE_ANY_EXHDR(value);
}

bytea *
mip_request_encode(const MipRequest *request, uint64 begun, const bytea *writeset)
{
	const MiptEntry none = {0};
	const MiptEntry *entry = request->entry ? request->entry : &none;
	StringInfoData body;
	uint8		fixed[FIXED];

	initStringInfo(&body);
	appendStringInfoSpaces(&body, VARHDRSZ + FIXED);
	put_string(&body, request->xid);
	put_string(&body, entry == &none ? "" : GetUserNameFromId(entry->owner, false));
	mipw_put_number(fixed + 36, (uint32) put_sites(&body, entry->sites), 4);
	mipw_put_number(fixed + 40, (uint32) put_text(&body, entry->request), 4);
	mipw_put_number(fixed + 44, (uint32) put_text(&body, entry->result), 4);
	mipw_put_number(fixed, body.len - VARHDRSZ, 4);
	mipw_put_number(fixed + 4, begun, 8);
	mipw_put_number(fixed + 12, mipw_fnv(MIPW_FNV, request->xid, strlen(request->xid)), 8);
	mipw_put_number(fixed + 20, entry->xinst, 8);
	mipw_put_number(fixed + 28, entry->since, 8);
	memcpy(body.data + VARHDRSZ, fixed, FIXED);
	if (writeset)
		appendBinaryStringInfo(&body, VARDATA_ANY(writeset), VARSIZE_ANY_EXHDR(writeset));
	SET_VARSIZE(body.data, body.len);
	return (bytea *) body.data;
}

typedef struct Reader
{
	const char *at;
	const char *end;
} Reader;

static char *
next_string(Reader *reader)
{
	Size		length = strnlen(reader->at, reader->end - reader->at);
	char	   *string = pnstrdup(reader->at, length);

	if (length == reader->end - reader->at)
		mip_refuse_message("a request that ends too early");
	reader->at += length + 1;
	return string;
}

static ArrayType *
next_sites(Reader *reader, int32 n)
{
	ArrayBuildState *sites = initArrayResult(TEXTOID, CurrentMemoryContext, false);

	if (n < 0)
		return NULL;
	for (int32 i = 0; i < n; i++)
		(void) accumArrayResult(sites, CStringGetTextDatum(next_string(reader)), false, TEXTOID,
								CurrentMemoryContext);
	return n == 0 ? construct_empty_array(TEXTOID) :
		DatumGetArrayTypeP(makeArrayResult(sites, CurrentMemoryContext));
}

static text *
next_text(Reader *reader, int32 length)
{
	text	   *value;

	if (length < 0)
		return NULL;
	if (length > reader->end - reader->at)
		mip_refuse_message("a request that ends too early");
	value = cstring_to_text_with_len(reader->at, length);
	reader->at += length;
	return value;
}

/* The entry's owner is invalid if there is no role of that name, which `owner` is set to. */
static MipRequest
decode(const MipMessage *message, const char **owner)
{
	const uint8 *body = message->body;
	MiptEntry  *entry = palloc0(sizeof(MiptEntry));
	MipRequest	request = {.entry = entry};
	Reader		reader = {(const char *) body + FIXED, (const char *) body + mipw_get_number(body, 4)};

	if (reader.end < reader.at)
		mip_refuse_message("a request that ends too early");
	entry->xinst = mipw_get_number(body + 20, 8);
	entry->since = mipw_get_number(body + 28, 8);
	request.xid = next_string(&reader);
	if (request.xid[0] == '\0' || strlen(request.xid) > MIP_XID_MAX)
		mip_refuse_message("a request that ends too early");
	*owner = next_string(&reader);
	entry->owner = get_role_oid(*owner, true);
	entry->sites = next_sites(&reader, (int32) mipw_get_number(body + 36, 4));
	entry->request = next_text(&reader, (int32) mipw_get_number(body + 40, 4));
	entry->result = next_text(&reader, (int32) mipw_get_number(body + 44, 4));
	if (entry->xinst == 0)
		request.entry = NULL;
	return request;
}

/* ---- applying it ---- */

/* The log decides: what has been noted of that XINST here, if anything, is of somebody who has used it again. */
static void
insert_committed(const char *xid, const MiptEntry *entry)
{
	MiptEntry  *other = mipt_find(mipt_peek(xid), entry->xinst);

	mip_doom_others(xid, entry->xinst);
	mip_evict_doomed(xid);
	if (other && ItemPointerIsValid(&other->tid))
	{
		if (other->state == MIP_COMMITTED)
			return;
		(void) mipt_delete(list_make1(other));
	}
	mipt_insert_committed(xid, entry);
}

/*
 * What has come before it, if anything, is decided. Whoever refuses another role's could not see
 * it where he was. What only runs here does not count: it runs nowhere else.
 */
static void
insert_refusal(const char *xid, const MiptEntry *entry)
{
	ListCell   *lc;

	foreach(lc, mipt_peek(xid))
	{
		MiptEntry  *other = lfirst(lc);

		if (ItemPointerIsValid(&other->tid) &&
			(other->state == MIP_COMMITTED || other->xinst == entry->xinst || other->owner != entry->owner))
			return;
	}
	mip_doom_one(xid, entry->xinst);
	mip_evict_doomed(xid);
	mipt_insert_aborted(xid, entry);
}

void
mip_request_apply(const MipMessage *message)
{
	const char *owner;
	MipRequest	request = decode(message, &owner);

	if (request.entry == NULL)
		return;
	if (!OidIsValid(request.entry->owner))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("role \"%s\" does not exist", owner),
				 errdetail("It has made a request at another replica."),
				 errhint("Create it here: roles are not replicated.")));
	mip_registry_ensure("mip.replica_receive");
	mip_family_lock_ending(request.xid);	/* the statement's owner will be
											 * gone */
	if (message->kind == MIP_MESSAGE_REQUEST)
		insert_committed(request.xid, request.entry);
	else
		insert_refusal(request.xid, request.entry);
	mip_family_noted(request.xid);
}
