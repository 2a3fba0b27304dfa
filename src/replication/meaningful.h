/*-------------------------------------------------------------------------
 *
 * meaningful.h
 *	  The settings that mean something to a definition: they go with it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_MEANINGFUL_H
#define MIP_REPLICATION_MEANINGFUL_H

#include "nodes/pg_list.h"

/* Their names and values, one after the other */
extern List *mip_meaningful_settings(void);

extern bool mip_is_meaningful(const char *setting);

#endif							/* MIP_REPLICATION_MEANINGFUL_H */
