/*-------------------------------------------------------------------------
 *
 * outcome.c
 *	  What has come of a definition, to be compared with what has at other replicas.
 *
 * What may become something else at another replica is refused before it is sent, as far as that
 * is known: by what the command says, what it has executed, what it has left. But whatever has
 * not been thought of there, or is in the way at one replica only, as an index of its own, is
 * noticed here, and by that replica, before it is committed: it waits until that has been mended, or the
 * definition is left out.
 *
 * Compared is what has become of what is replicated: no temporary objects, no index that may be a
 * replica's own, no numbers, no rights. And only what the definition has changed: what was there may
 * look otherwise at each replica, as the name of an index by its number, which REINDEX CONCURRENTLY
 * has given to another one. So of what has gone it is the name only. And of an index it is what the catalogs
 * have, as one snapshot sees them: it may get another number while they are read.
 *
 * What has changed is found by how it is stored, which differs between replicas, but not with time. Only that is put
 * into words: to do so locks all that a view refers to. A value that rows do not have, since they are older than their
 * column, is that column's whatever it is called: it may have been written into the rows at one replica, by VACUUM FULL.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type_d.h"
#include "common/hashfn.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "base/rows.h"
#include "base/settings.h"
#include "replication/defined.h"
#include "replication/outcome.h"

/* As mip_name_is_of_reindex */
#define IS_REINDEXED "i.relname ~ '_cc(new|old)[0-9]*$'"

#define IS_OURS(namespace) namespace "::regnamespace::text !~ '^(pg_|information_schema$)'"

/*
 * Of what kind something is, its name, and how it is stored: that is compared with what it was before at this replica,
 * and locks nothing. `class`, `object` and `sub` lead to it.
 */
#define LINES \
	"relation AS (" \
	" SELECT c.*, format('%I.%I', n.nspname, c.relname) AS name" \
	"  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace" \
	"  WHERE c.relkind = ANY ('{r,p,v,m,f,c,S}') AND c.relpersistence <> 't' AND " IS_OURS("c.relnamespace") \
	"), line (kind, name, object, sub, stored) AS (" \
	" SELECT 'relations', name, oid, 0, (relkind, relpersistence, relispartition, relrowsecurity, relforcerowsecurity, reloftype," \
	"   relpartbound, (SELECT (partstrat, partattrs, partclass, partcollation, partexprs) FROM pg_partitioned_table WHERE partrelid = oid)," \
	"   (SELECT ev_action FROM pg_rewrite WHERE ev_class = relation.oid AND rulename = '_RETURN'))::text" \
	"  FROM relation" \
	" UNION ALL" \
	" SELECT 'inheritance', format('%s %s', child.name, parent.name), inhrelid, 0, inhseqno::text" \
	"  FROM pg_inherits JOIN relation child ON child.oid = inhrelid JOIN relation parent ON parent.oid = inhparent" \
	" UNION ALL" \
	" SELECT 'columns', format('%s.%I', name, attname), attrelid, attnum, (atttypid, atttypmod, attnotnull, attidentity," \
	"   attgenerated, attcollation, adbin)::text" \
	"  FROM relation JOIN pg_attribute ON attrelid = relation.oid AND attnum > 0 AND NOT attisdropped AND relkind <> 'S'" \
	"   LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum" \
	" UNION ALL" \
	" SELECT 'constraints', format('%s %I', coalesce(name, format_type(contypid, NULL)), conname), con.oid, 0, (contype," \
	"   convalidated, condeferrable, condeferred, to_jsonb(con) ->> 'conenforced', connoinherit, confrelid, confupdtype," \
	"   confdeltype, confmatchtype, conkey, confkey, conexclop, confdelsetcols, conbin)::text" \
	"  FROM pg_constraint con LEFT JOIN relation ON relation.oid = conrelid" \
	"  WHERE name IS NOT NULL OR contypid <> 0 AND " IS_OURS("connamespace") \
	" UNION ALL" \
	" SELECT 'indexes', format('%s.%I', i.relnamespace::regnamespace, i.relname), i.oid, 0, (name, i.relam, indisunique," \
	"   indnullsnotdistinct, indimmediate, indisreplident, indnkeyatts, indkey, indoption, indclass, indcollation, indexprs, indpred," \
	"   inhparent)::text" \
	"  FROM relation JOIN pg_index ON indrelid = relation.oid JOIN pg_class i ON i.oid = indexrelid" \
	"   LEFT JOIN pg_inherits ON inhrelid = i.oid" \
	"  WHERE (indisunique OR i.relispartition OR i.relkind = 'I') AND NOT " IS_REINDEXED \
	" UNION ALL" \
	" SELECT 'triggers', format('%s %I', name, tgname), t.oid, 0, (tgenabled, tgtype, tgfoid, tgconstrrelid, tgdeferrable," \
	"   tginitdeferred, tgattr, tgargs, tgqual, tgoldtable, tgnewtable)::text" \
	"  FROM pg_trigger t JOIN relation ON relation.oid = tgrelid WHERE NOT tgisinternal" \
	" UNION ALL" \
	" SELECT 'rules', format('%s %I', name, rulename), r.oid, 0, (ev_enabled, ev_type, is_instead, ev_qual, ev_action)::text" \
	"  FROM pg_rewrite r JOIN relation ON relation.oid = ev_class WHERE rulename <> '_RETURN'" \
	" UNION ALL" \
	" SELECT 'policies', format('%s %I', name, polname), p.oid, 0, (polcmd, polpermissive, polqual, polwithcheck)::text" \
	"  FROM pg_policy p JOIN relation ON relation.oid = polrelid" \
	" UNION ALL" \
	" SELECT 'types', format_type(t.oid, NULL), t.oid, 0, (typtype, typbasetype, typtypmod, typnotnull," \
	"   typdefault, array(SELECT enumlabel FROM pg_enum WHERE enumtypid = t.oid ORDER BY enumsortorder))::text" \
	"  FROM pg_type t WHERE typtype IN ('d', 'e') AND " IS_OURS("typnamespace") \
	" UNION ALL" \
	" SELECT 'functions', p.oid::regprocedure::text, p.oid, 0, (prokind, prorettype, proretset, provolatile," \
	"   prosecdef, proisstrict, proleakproof, proconfig, prosrc, prosqlbody, proargdefaults)::text" \
	"  FROM pg_proc p WHERE " IS_OURS("pronamespace") \
	" UNION ALL" \
	" SELECT 'statistics', format('%s.%I', stxnamespace::regnamespace, stxname), s.oid, 0, (stxrelid, stxkeys, stxkind, stxexprs)::text" \
	"  FROM pg_statistic_ext s JOIN relation ON relation.oid = stxrelid" \
	" UNION ALL" \
	" SELECT 'rows', format('%s.%s', attrelid, attnum), attrelid, attnum, attmissingval::text" \
	"  FROM relation JOIN pg_attribute ON attrelid = relation.oid WHERE atthasmissing" \
	" UNION ALL" \
	" SELECT 'places', oid::text, oid, 0, reltablespace::text FROM relation WHERE relkind = 'r'" \
	" UNION ALL" \
	" SELECT 'extensions', quote_ident(extname), oid, 0, extversion FROM pg_extension" \
	"), known AS (" \
	" SELECT *, format('%s %s = %s', kind, name, hashtextextended(stored, 0)) AS it FROM line" \
	")"

/* What it is, in words that are the same at all replicas. This locks what it refers to. */
#define MEANS \
	"CASE kind" \
	" WHEN 'relations' THEN (SELECT (relkind, relpersistence, relispartition, relrowsecurity, relforcerowsecurity," \
	"   format_type(nullif(reloftype, 0), NULL), pg_get_expr(relpartbound, oid), pg_get_partkeydef(oid)," \
	"   CASE WHEN relkind IN ('v', 'm') THEN pg_get_viewdef(oid) END)::text FROM pg_class WHERE oid = object)" \
	" WHEN 'columns' THEN (SELECT (format_type(atttypid, atttypmod), attnotnull, attidentity, attgenerated," \
	"   attcollation::regcollation, pg_get_expr(adbin, adrelid))::text" \
	"  FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum WHERE attrelid = object AND attnum = sub)" \
	" WHEN 'constraints' THEN (SELECT (contype, convalidated, condeferrable, condeferred, pg_get_constraintdef(oid)," \
	"   conindid::regclass)::text" \
	"  FROM pg_constraint WHERE oid = object)" \
	" WHEN 'indexes' THEN (SELECT (indrelid::regclass, amname, indisunique, indnullsnotdistinct, indimmediate, indisreplident," \
	"   indnkeyatts, indkey, indoption," \
	"   array(SELECT opcname FROM unnest(indclass::oid[]) WITH ORDINALITY AS of (o, n)" \
	"    JOIN pg_opclass ON pg_opclass.oid = o ORDER BY n)," \
	"   array(SELECT o::regcollation FROM unnest(indcollation::oid[]) WITH ORDINALITY AS of (o, n) ORDER BY n)," \
	"   pg_get_expr(indexprs, indrelid), pg_get_expr(indpred, indrelid), inhparent::regclass)::text" \
	"  FROM pg_index JOIN pg_class i ON i.oid = indexrelid JOIN pg_am ON pg_am.oid = relam LEFT JOIN pg_inherits ON inhrelid = i.oid" \
	"  WHERE indexrelid = object)" \
	" WHEN 'triggers' THEN (SELECT (tgenabled, pg_get_triggerdef(oid))::text FROM pg_trigger WHERE oid = object)" \
	" WHEN 'rules' THEN (SELECT (ev_enabled, pg_get_ruledef(oid))::text FROM pg_rewrite WHERE oid = object)" \
	" WHEN 'policies' THEN (SELECT (polcmd, polpermissive, pg_get_expr(polqual, polrelid), pg_get_expr(polwithcheck, polrelid))::text" \
	"  FROM pg_policy WHERE oid = object)" \
	" WHEN 'types' THEN (SELECT (typtype, format_type(nullif(typbasetype, 0), typtypmod), typnotnull, typdefault," \
	"   array(SELECT enumlabel FROM pg_enum WHERE enumtypid = object ORDER BY enumsortorder))::text FROM pg_type WHERE oid = object)" \
	" WHEN 'functions' THEN (SELECT (prokind, format_type(prorettype, NULL), proretset, provolatile, prosecdef, proisstrict," \
	"   proleakproof, proconfig, prosrc, pg_get_function_sqlbody(oid), pg_get_function_arguments(oid))::text FROM pg_proc WHERE oid = object)" \
	" WHEN 'statistics' THEN pg_get_statisticsobjdef(object)" \
	" WHEN 'rows' THEN (SELECT (attrelid::regclass, attname, attmissingval)::text FROM pg_attribute" \
	"  WHERE attrelid = object AND attnum = sub)" \
	" ELSE stored END"

static const char *const before_query =
"WITH " LINES " SELECT coalesce(array_agg(it), '{}') FROM known";

/*
 * $1: what was known before. $2: tables that have been stored anew; but where that was for another tablespace, which
 * some replicas may have had them in, and which goes alone. A value that rows do not have is compared when it comes; later it may read
 * otherwise, or be in the rows at some replicas.
 */
static const char *const outcome_query =
"WITH " LINES ", before AS ("
" SELECT it, regexp_replace(it, ' = -?[0-9]+$', '') AS name FROM unnest($1) AS it"
"), difference (kind, line) AS ("
" SELECT kind, format('%s = %s', CASE WHEN kind <> 'rows' THEN name END, " MEANS ") FROM known"
"  WHERE kind <> 'places' AND NOT EXISTS (SELECT FROM before WHERE before.it = known.it"
"   OR (kind = 'rows' AND before.name = format('%s %s', kind, known.name)))"
" UNION ALL"
" SELECT split_part(name, ' ', 1), name FROM before"
"  WHERE name !~ '^(rows|places) ' AND NOT EXISTS ("
"   SELECT FROM known WHERE format('%s %s', known.kind, known.name) = before.name)"
" UNION ALL"
" SELECT 'rows', format('%s = %s', relation.name, mip.relation_checksum(oid)) FROM relation JOIN known ON kind = 'places' AND object = oid"
"  WHERE oid = ANY ($2) AND it IN (SELECT it FROM before)"
") SELECT coalesce(string_agg(format(' %s=%s', kind, sum), '' ORDER BY kind COLLATE \"C\"), '') FROM ("
" SELECT kind, left(encode(sha256(convert_to(string_agg(line, E'\\n' ORDER BY line COLLATE \"C\"),"
"   getdatabaseencoding())), 'hex'), 16) AS sum"
"  FROM difference GROUP BY kind) sums";

/* How values and names are written, whoever asks. */
static void
set_as_compared(void)
{
	static const char *const settings[][2] = {
		{"search_path", "pg_catalog, pg_temp"},
		{"quote_all_identifiers", "off"},
		{"standard_conforming_strings", "on"},
		{"DateStyle", "ISO, MDY"},
		{"IntervalStyle", "postgres"},
		{"TimeZone", "UTC"},
		{"extra_float_digits", "1"},
		{"bytea_output", "hex"},
		{"max_parallel_workers_per_gather", "0"},
		{"jit", "off"},
		{"temp_file_limit", "-1"},
	};

	for (int i = 0; i < lengthof(settings); i++)
		mip_set_for_now(settings[i][0], settings[i][1]);
}

/* As it is now, whatever the transaction's snapshot sees */
static Datum
ask(const char *query, int nargs, Oid *types, Datum *values)
{
	int			level = NewGUCNestLevel();
	SPIPlanPtr	plan;
	Datum		result;
	bool		isnull;

	set_as_compared();
	plan = SPI_prepare(query, nargs, types);
	if (plan == NULL ||
		SPI_execute_snapshot(plan, values, NULL, GetLatestSnapshot(), InvalidSnapshot, true, false, 0) != SPI_OK_SELECT ||
		SPI_processed != 1)
		elog(ERROR, "definitions cannot be compared: %s", SPI_result_code_string(SPI_result));
	result = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);
	if (isnull)
		elog(ERROR, "definitions cannot be compared");
	result = PointerGetDatum(PG_DETOAST_DATUM_COPY(result));
	SPI_freeplan(plan);
	AtEOXact_GUC(false, level);
	return result;
}

Datum
mip_outcome_before(void)
{
	return ask(before_query, 0, NULL, NULL);
}

/* ---- rows that are stored anew ---- */

static void
note_stored_anew(Relation classes, HeapTuple row, void *found)
{
	Form_pg_class form = (Form_pg_class) GETSTRUCT(row);
	ArrayBuildState **tables = found;
	Relation	rel;

	if (form->relkind != RELKIND_RELATION || form->relpersistence != RELPERSISTENCE_PERMANENT ||
		form->relnamespace == get_namespace_oid("mip", true) ||
		!mip_row_is_new(row) || !mip_was_there(form->oid))
		return;
	rel = table_open(form->oid, AccessShareLock);
	if (rel->MIP_RD_FIRST_FILE_SUBID != InvalidSubTransactionId)
		*tables = accumArrayResult(*tables, ObjectIdGetDatum(form->oid), false, OIDOID, CurrentMemoryContext);
	table_close(rel, AccessShareLock);
}

static Datum
stored_anew(void)
{
	ArrayBuildState *tables = initArrayResult(OIDOID, CurrentMemoryContext, false);

	mip_each_row(RelationRelationId, note_stored_anew, &tables);
	return makeArrayResult(tables, CurrentMemoryContext);
}

/* ---- the outcome ---- */

/* Another version of the extension may ask otherwise. */
static uint32
version_of_queries(void)
{
	return hash_bytes_uint32(hash_bytes((const unsigned char *) before_query, strlen(before_query)) ^
							 hash_bytes((const unsigned char *) outcome_query, strlen(outcome_query)));
}

static bool
are_comparable(const char *outcome, const char *expected)
{
	size_t		version = strcspn(outcome, " ");

	return strcspn(expected, " ") == version && strncmp(outcome, expected, version) == 0;
}

char *
mip_outcome(Datum before)
{
	Oid			types[] = {TEXTARRAYOID, OIDARRAYOID};
	Datum		values[] = {before, stored_anew()};
	char	   *sums = TextDatumGetCString(ask(outcome_query, lengthof(types), types, values));

	return psprintf("%s/%08x%s", GetConfigOption("server_version_num", false, false), version_of_queries(), sums);
}

static char *
kind_of(const char *word)
{
	return pnstrdup(word, strcspn(word, "="));
}

/* The kinds of what is in `outcome`, and not the same in `other` */
static void
add_kinds(StringInfo kinds, const char *outcome, const char *other)
{
	char	   *at = pstrdup(outcome);
	char	   *word = strsep(&at, " ");	/* the versions */

	while ((word = strsep(&at, " ")) != NULL)
	{
		char	   *kind = kind_of(word);

		if (strstr(other, psprintf(" %s ", word)) == NULL && strstr(kinds->data, kind) == NULL)
			appendStringInfo(kinds, "%s%s", kinds->len ? ", " : "", kind);
	}
}

void
mip_check_outcome(const char *outcome, const char *expected)
{
	StringInfoData kinds;

	if (!are_comparable(outcome, expected) || strcmp(outcome, expected) == 0)
		return;
	initStringInfo(&kinds);
	add_kinds(&kinds, outcome, psprintf("%s ", expected));
	add_kinds(&kinds, expected, psprintf("%s ", outcome));
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the definition comes to something else at this replica than where it was sent from"),
			 errdetail("Not the same are: %s.", kinds.data),
			 errhint("Compare this replica with another one by pg_dump --schema-only, and drop what is its own and in the way. "
					 "If the definition is not the same at any replica, leave it out at all: mip.replica_skip().")));
}
