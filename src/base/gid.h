/*-------------------------------------------------------------------------
 *
 * gid.h
 *	  Names of the instances' prepared transactions.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_GID_H
#define MIP_GID_H

/* `gid` has room for GIDSIZE bytes, `xid` for MIP_XID_MAX + 1. */
extern void mip_gid(char *gid, const char *xid, int64 xinst);

/* False if it is not the name of an instance. */
extern bool mip_gid_parse(const char *gid, Oid *dbid, char *xid, int64 *xinst);

/* Does it begin like one? Nobody else may use such a name. */
extern bool mip_gid_is_mip(const char *gid);

#endif							/* MIP_GID_H */
