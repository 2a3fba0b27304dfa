/*-------------------------------------------------------------------------
 *
 * input.c
 *	  Writesets that come in by SQL.
 *
 * What format_decode.c leaves, since it takes a server: encodings.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "mb/pg_wchar.h"
#include "utils/memutils.h"

#include "writeset/input.h"

void
mip_writeset_invalid(const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_BINARY_REPRESENTATION),
			 errmsg("this is not a writeset of pg_mip"),
			 errdetail("In the given bytes: %s.", detail)));
}

static void *
alloc(size_t size)
{
	return MemoryContextAllocHuge(CurrentMemoryContext, size);
}

char *
mip_writeset_text(const MipwSet *set, const void *data, size_t length)
{
	char	   *result = pnstrdup(data, length);
	char	   *converted;

	if (!pg_verify_mbstr(set->encoding, result, length, true))
		mip_writeset_invalid("a text is not valid in its encoding");
	if (set->encoding == GetDatabaseEncoding())
		return result;
	if (set->encoding == PG_SQL_ASCII &&	/* which is not converted */
		!pg_verify_mbstr(GetDatabaseEncoding(), result, length, true))
		mip_writeset_invalid("a text is not valid in this database's encoding");
	converted = pg_any_to_server(result, length, set->encoding);
	if (converted != result)
		pfree(result);
	return converted;
}

/* A name in this database's encoding; `convert`: else it is only looked at. */
static void
convert_name(const MipwSet *set, char **name, bool convert)
{
	if (convert)
		*name = mip_writeset_text(set, *name, strlen(*name));
	else if (!pg_verify_mbstr(set->encoding, *name, strlen(*name), true))
		mip_writeset_invalid("a name is not valid in its encoding");
}

/* Different names may be the same one in this database's encoding. */
static void
check_converted_names(const MipwRelation *relation)
{
	char	  **room = palloc(relation->ncolumns * sizeof(char *) + 1);

	if (!mipw_names_are_unique(relation, room))
		mip_writeset_invalid("a relation has two columns of one name in this database's encoding");
	pfree(room);
}

static bool
can_be_converted(int encoding)
{
	int			here = GetDatabaseEncoding();

	return encoding == here || encoding == PG_SQL_ASCII || here == PG_SQL_ASCII ||
		OidIsValid(FindDefaultConversionProc(encoding, here));
}

static void
check_encoding(const MipwSet *set, bool convert)
{
	if (!PG_VALID_BE_ENCODING(set->encoding))
		mip_writeset_invalid("its encoding is unknown");
	if (convert && !can_be_converted(set->encoding))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_BINARY_REPRESENTATION),
				 errmsg("the writeset's encoding \"%s\" cannot be converted to \"%s\"",
						pg_encoding_to_char(set->encoding), GetDatabaseEncodingName())));
}

static const MipwSet *
open_writeset(struct varlena *bytes, bool convert)
{
	MipwSet    *set = palloc(sizeof(MipwSet));
	const char *wrong = mipw_decode(VARDATA_ANY(bytes), VARSIZE_ANY_EXHDR(bytes), alloc, set);

	if (wrong)
		mip_writeset_invalid(wrong);
	check_encoding(set, convert);
	for (uint32 i = 0; i < set->nrelations; i++)
	{
		MipwRelation *relation = &set->relations[i];

		convert_name(set, &relation->schema, convert);
		convert_name(set, &relation->name, convert);
		for (int j = 0; j < relation->ncolumns; j++)
		{
			convert_name(set, &relation->columns[j].name, convert);
			convert_name(set, &relation->columns[j].type, convert);
		}
		if (convert && set->encoding != GetDatabaseEncoding())
			check_converted_names(relation);
	}
	return set;
}

const MipwSet *
mip_writeset_open(struct varlena *bytes)
{
	return open_writeset(bytes, true);
}

const MipwSet *
mip_writeset_open_raw(struct varlena *bytes)
{
	return open_writeset(bytes, false);
}
