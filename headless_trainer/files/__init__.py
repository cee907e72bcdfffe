"""Files that are whole or absent, their checksums, and files of models here or on the Hub."""
