"""The built-in grammar: sentences with trees and roles."""
