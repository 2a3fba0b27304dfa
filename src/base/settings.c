/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  Settings for as long as something takes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/guc.h"

#include "base/settings.h"

void
mip_set_for_now(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}
