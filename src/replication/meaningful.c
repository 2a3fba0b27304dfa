/*-------------------------------------------------------------------------
 *
 * meaningful.c
 *	  The settings that mean something to a definition: they go with it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/guc.h"

#include "replication/meaningful.h"

static const char *const meaningful[] = {
	"search_path",
	"default_table_access_method",
	"default_tablespace",
	"default_toast_compression",
	"default_text_search_config",
	"check_function_bodies",
	"standard_conforming_strings",
	"backslash_quote",
	"transform_null_equals",
	"array_nulls",
	"DateStyle",
	"IntervalStyle",
	"TimeZone",
	"timezone_abbreviations",
	"lc_monetary",
	"lc_numeric",
	"lc_time",
	"xmlbinary",
	"xmloption",
	"extra_float_digits",
	"bytea_output",
	"quote_all_identifiers",
};

bool
mip_is_meaningful(const char *setting)
{
	for (int i = 0; i < lengthof(meaningful); i++)
	{
		if (pg_strcasecmp(meaningful[i], setting) == 0)
			return true;
	}
	return false;
}

List *
mip_meaningful_settings(void)
{
	List	   *settings = NIL;

	for (int i = 0; i < lengthof(meaningful); i++)
	{
		const char *value = GetConfigOption(meaningful[i], true, false);

		if (value)
			settings = list_concat(settings, list_make2(pstrdup(meaningful[i]), pstrdup(value)));
	}
	return settings;
}
