"""Records of the commit log, encoded one by one and in batches; entries of consume queue and index files."""
